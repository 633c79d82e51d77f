"""Data files of EagleLens. A regular package, so that editable installs find it as one folder."""
