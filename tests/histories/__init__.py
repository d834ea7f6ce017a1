"""Stock clients write down what they ask for and what they get while processes die around them; a
checker reads it afterwards and says what no cluster may have done, under Jepsen's names."""
