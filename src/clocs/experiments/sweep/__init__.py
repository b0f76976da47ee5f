"""Many pre-trainings that differ in some options, scored on validation patients."""
