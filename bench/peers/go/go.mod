module leasehold/bench/peers/go

go 1.26.8

require (
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/gomodule/redigo v1.9.3
	golang.org/x/sys v0.49.0
)
