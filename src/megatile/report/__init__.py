"""Pictures and tables of machines and traces. Matplotlib is loaded when something is drawn."""
