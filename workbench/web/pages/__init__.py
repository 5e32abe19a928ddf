"""The pages of the dashboard, one module each: `layout` builds a page from the served run and the address query."""
