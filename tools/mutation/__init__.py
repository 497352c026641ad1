"""Random single mutations of models/ and search/: which of those that change an answer do the tests catch?"""
