"""What a program imports to own an engine or to call one: `sublet.Engine`, `sublet.connect`."""
