"""One module for each target; its `target()` gives a `fuzz.driver.Target`."""
