"""Stores and encoders in the shapes that other libraries expect: scikit-learn, torch, datasets."""
