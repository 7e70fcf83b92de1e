// printf is built in.
