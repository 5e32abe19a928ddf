"""Read artefacts that are on other machines: copy them from URLs, and let the workers of a cluster read them."""
