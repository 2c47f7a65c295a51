// redsync (Go) on one server; see ../README.md.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	adapter "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	"golang.org/x/sys/unix"
)

func main() {
	address := "127.0.0.1:" + os.Args[1]
	pool := &redis.Pool{MaxIdle: 256, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
	locks := redsync.New(adapter.NewPool(pool))
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if words[0] == "pairs" {
			pairs(locks, words[1], number(words[2]), number(words[3]))
		} else {
			hand(locks, words[1], number(words[2]))
		}
		fmt.Println("done")
	}
}

func pairs(locks *redsync.Redsync, prefix string, tasks, count int) {
	var all sync.WaitGroup
	for task := 0; task < tasks; task++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < count/tasks; i++ {
				mutex := locks.NewMutex(fmt.Sprintf("%s:%d", prefix, task), redsync.WithExpiry(30*time.Second))
				must(mutex.Lock())
				_, err := mutex.Unlock()
				must(err)
			}
		}()
	}
	all.Wait()
}

func hand(locks *redsync.Redsync, name string, count int) {
	times := make([][2]int64, 0, count)
	for i := 0; i < count; i++ {
		mutex := locks.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))
		must(mutex.Lock())
		acquired := clock()
		time.Sleep(4 * time.Millisecond)
		times = append(times, [2]int64{acquired, clock()})
		_, err := mutex.Unlock()
		must(err)
		time.Sleep(time.Millisecond)
	}
	for _, time := range times {
		fmt.Println(time[0], time[1])
	}
}

func clock() int64 {
	var now unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano()
}

func number(word string) (parsed int) {
	_, err := fmt.Sscan(word, &parsed)
	must(err)
	return parsed
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
