"""The exams of what is predicted besides single GEMMs, a module each: tables, fits, baselines, calibration."""
