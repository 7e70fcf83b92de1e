// malloc and free are built in.
