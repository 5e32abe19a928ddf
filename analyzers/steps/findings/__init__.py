"""Write the findings and the verdict on steps from the answers: all sentences of the steps analyzer."""
