"""What pages, figures and the terminal share: colours, the style sheet, labels of runs."""
