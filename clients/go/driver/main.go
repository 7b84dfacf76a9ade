// The shared script of scenarios, for this library: see clients/README.md.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	redrive "redrive.dev/client"
)

var out sync.Mutex

func say(line map[string]any) {
	text, _ := json.Marshal(line)
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var backoff = redrive.Backoff{Base: 20 * time.Millisecond, Cap: 300 * time.Millisecond, Limit: 2 * time.Minute}

func client(url string) *redrive.Client {
	return &redrive.Client{URL: url, Timeout: 10 * time.Second, Backoff: backoff}
}

func event(id string, n int) redrive.Event {
	return redrive.Event{ID: id, Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))}
}

func publish(url, queue, count string) {
	ctx, client := context.Background(), client(url)
	all, err := strconv.Atoi(count)
	must(err)
	half := all / 2
	for n := range half {
		said, err := client.Publish(ctx, queue, event(fmt.Sprintf("one-%d", n), n))
		must(err)
		say(map[string]any{"published": said.ID, "result": said.Result})
	}
	for start := 0; start < half; start += 10 {
		var events []redrive.Event
		for n := start; n < min(start+10, half); n++ {
			events = append(events, event(fmt.Sprintf("many-%d", n), n))
		}
		results, err := client.PublishMany(ctx, queue, events)
		must(err)
		for _, said := range results {
			say(map[string]any{"published": said.ID, "result": said.Result})
		}
	}
}

func work(url, queue string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var tried sync.Map
	handle := func(_ context.Context, lease *redrive.Lease) error {
		_, again := tried.LoadOrStore(lease.IdempotencyKey, true)
		if strings.HasSuffix(lease.ID, "7") && !again {
			return &redrive.Retry{Err: errors.New("the first time it is busy"), Code: "503", After: 10 * time.Millisecond, NotExecuted: true}
		}
		if lease.ID == "poison" {
			return &redrive.Permanent{Err: errors.New("never"), Code: "422"}
		}
		say(map[string]any{"effect": lease.ID, "key": lease.IdempotencyKey})
		return nil
	}
	worker := redrive.Worker{Client: client(url), Queue: queue, Handle: handle, Concurrency: 4, LeaseTime: 3 * time.Second, Wait: "1s"}
	must(worker.Run(ctx))
	say(map[string]any{"stopped": true})
}

func lines(each func([]byte)) {
	read := bufio.NewScanner(os.Stdin)
	read.Buffer(nil, 16<<20)
	for read.Scan() {
		each(read.Bytes())
	}
}

func webhooks() {
	lines(func(line []byte) {
		var ask struct {
			Secrets []string
			Headers map[string]string
			Body    string
			Now     int64
		}
		must(json.Unmarshal(line, &ask))
		body, err := base64.StdEncoding.DecodeString(ask.Body)
		must(err)
		header, now := http.Header{}, time.Now()
		for name, value := range ask.Headers {
			header.Set(name, value)
		}
		if ask.Now != 0 {
			now = time.Unix(ask.Now, 0)
		}
		_, err = redrive.Verify(ask.Secrets, header, body, now)
		say(map[string]any{"valid": err == nil})
	})
}

func call(url string) {
	limited := backoff
	limited.Limit = 30 * time.Second
	client := redrive.IdempotentClient{Timeout: 10 * time.Second, Backoff: limited}
	lines(func(line []byte) {
		var ask struct {
			Path, Key string
			Data      any
		}
		must(json.Unmarshal(line, &ask))
		reply, err := client.Do(context.Background(), redrive.Call{URL: url + ask.Path, JSON: ask.Data, Key: ask.Key})
		var problem *redrive.Problem
		var unanswered *redrive.Unanswered
		switch {
		case err == nil:
			say(map[string]any{"status": reply.Status, "replayed": reply.Replayed, "key": reply.Key})
		case errors.As(err, &unanswered):
			say(map[string]any{"unanswered": true})
		case errors.As(err, &problem):
			say(map[string]any{"problem": problem.Code, "status": problem.Status})
		default:
			must(err)
		}
	})
}

func main() {
	switch words := os.Args[1:]; words[0] {
	case "publish":
		publish(words[1], words[2], words[3])
	case "work":
		work(words[1], words[2])
	case "webhooks":
		webhooks()
	case "call":
		call(words[1])
	}
}
