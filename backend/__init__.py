"""Everything of EagleLens without a screen: the wire, attribution, metrics, engines."""
