module redrive.dev/client

go 1.22
