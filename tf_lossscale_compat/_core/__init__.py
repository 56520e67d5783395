"""One training step, and what it is made of; knows no public class."""
