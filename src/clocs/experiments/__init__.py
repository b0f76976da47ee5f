"""The paper's experiments; all but report and demo need only torch, numpy, scipy, safetensors."""
