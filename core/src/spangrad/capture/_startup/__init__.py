"""A folder that is put before the module path of child processes. Nothing but `sitecustomize` may lie in it."""
