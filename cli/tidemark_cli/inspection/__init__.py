"""Health of a cluster as its objects report it: findings, a verdict, their causes and remedies."""
