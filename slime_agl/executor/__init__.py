"""From a row of the data source to the Samples and rewards of one execution, here or in a worker."""
