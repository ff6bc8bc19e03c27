"""Episodes: parsing, carrying out calls, user turns, grading; and the SkyRL adapters."""
