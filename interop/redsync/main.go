// Acquires and releases a redsync lock on one server. Reads the commands
// "acquire" and "release" from standard input, one per line, and prints "true"
// or "false" for each. The arguments are the port and the key.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	adapter "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
)

func main() {
	address := "127.0.0.1:" + os.Args[1]
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
	locks := redsync.New(adapter.NewPool(pool))
	mutex := locks.NewMutex(os.Args[2], redsync.WithExpiry(30*time.Second), redsync.WithTries(1),
		// Tolerates a stalled machine.
		redsync.WithTimeoutFactor(0.5))
	words := bufio.NewScanner(os.Stdin)
	for words.Scan() {
		switch words.Text() {
		case "acquire":
			fmt.Println(mutex.TryLock() == nil)
		case "release":
			released, err := mutex.Unlock()
			fmt.Println(released && err == nil)
		}
	}
}
