module leasehold/interop/redsync

go 1.26.8

require (
	github.com/go-redsync/redsync/v4 v4.18.1 // indirect
	github.com/gomodule/redigo v1.9.3 // indirect
)
