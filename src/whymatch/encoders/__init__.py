"""Every kind of encoder: loading it, cutting it at a layer, and explaining those that are not differentiated."""
