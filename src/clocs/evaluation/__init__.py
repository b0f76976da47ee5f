"""Evaluation: checkpoints and labeled frames -> test scores, intervals and paired tests."""
