"""`tfdist bench train`: the steps of `model.fit`, on all ranks and on independent processes."""
