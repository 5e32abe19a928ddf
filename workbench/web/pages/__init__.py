"""The pages of the dashboard, one module each; `layout` builds a page from the run and the query of the address."""
