package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Retry is returned by a handler: a later attempt may succeed, After from now at the earliest.
type Retry struct {
	Err         error
	After       time.Duration
	Code        string
	NotExecuted bool // it is certain that nothing took effect
}

func (r *Retry) Error() string { return fmt.Sprint(r.Err) }
func (r *Retry) Unwrap() error { return r.Err }

// Permanent is returned by a handler: no attempt will succeed, so the event becomes a dead letter.
type Permanent struct {
	Err         error
	Code        string
	NotExecuted bool
}

func (p *Permanent) Error() string { return fmt.Sprint(p.Err) }
func (p *Permanent) Unwrap() error { return p.Err }

// ErrDrop is returned by a handler: the event is not needed any more.
var ErrDrop = errors.New("the event is not needed any more")

// Worker runs a handler for events of a queue. A handler that returns nil has succeeded; Retry, Permanent and ErrDrop
// say otherwise, and any other error or a panic is a retry. Delivery is at least once: make the effect depend on the
// lease's IdempotencyKey, which is the same for all attempts.
type Worker struct {
	Client      *Client
	Queue       string
	Handle      func(context.Context, *Lease) error
	Concurrency int           // 16 if zero
	LeaseTime   time.Duration // 30 s if zero
	Wait        string        // 10s if empty
	Tenant      string
	Log         *slog.Logger // slog.Default() if nil
}

// Run works until ctx is done. Then it takes no more events; those under way are finished and settled.
func (w *Worker) Run(ctx context.Context) error {
	places := w.Concurrency
	if places == 0 {
		places = 16
	}
	free := make(chan struct{}, places)
	for range places {
		free <- struct{}{}
	}
	var running sync.WaitGroup
	defer running.Wait()
	for {
		taken := 0
		select {
		case <-ctx.Done():
			return nil
		case <-free:
			taken = 1
		}
	more:
		for {
			select {
			case <-free:
				taken++
			default:
				break more
			}
		}
		leases, err := w.Client.Lease(ctx, w.Queue, Ask{Max: taken, Lease: w.lease(), Wait: w.wait(), Tenant: w.Tenant})
		for range taken - len(leases) {
			free <- struct{}{}
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for n := range leases {
			running.Add(1)
			go func() {
				defer running.Done()
				// What was begun is ended, also when the worker stops.
				w.attempt(context.WithoutCancel(ctx), &leases[n])
				free <- struct{}{}
			}()
		}
	}
}

func (w *Worker) lease() string {
	return fmt.Sprintf("%dms", max(orElse(w.LeaseTime, 30*time.Second), time.Second).Milliseconds())
}

func (w *Worker) wait() string {
	if w.Wait == "" {
		return "10s"
	}
	return w.Wait
}

func (w *Worker) log() *slog.Logger {
	if w.Log == nil {
		return slog.Default()
	}
	return w.Log
}

func (w *Worker) attempt(ctx context.Context, lease *Lease) {
	extending, done := context.WithCancel(ctx)
	go w.extend(extending, lease)
	settle := w.outcome(ctx, lease)
	done()
	results, err := w.Client.Settle(ctx, w.Queue, []Settle{settle})
	switch {
	case err != nil:
		// The lease runs out, and the event is attempted again.
		w.log().Warn("an event could not be settled", "id", lease.ID, "error", err)
	case len(results) == 1 && results[0].Status != 200:
		w.log().Warn("a settle does not count", "id", lease.ID, "result", results[0].Result)
	}
}

// extend extends the lease every third of its time, while the handler runs.
func (w *Worker) extend(ctx context.Context, lease *Lease) {
	tick := time.NewTicker(orElse(w.LeaseTime, 30*time.Second) / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		results, err := w.Client.Extend(ctx, w.Queue, []Held{lease.Held}, w.lease())
		if err != nil && ctx.Err() == nil {
			w.log().Warn("a lease could not be extended", "id", lease.ID, "error", err)
		}
		if err == nil && len(results) == 1 && results[0].Status != 200 {
			return // Done, or another worker's: the settle finds out.
		}
	}
}

func (w *Worker) outcome(ctx context.Context, lease *Lease) (settle Settle) {
	settle = Settle{Held: lease.Held, Disposition: "ok"}
	defer func() {
		if panicked := recover(); panicked != nil {
			settle.Disposition, settle.Error = "retry", &Failure{Kind: "panic", Message: fmt.Sprint(panicked)}
		}
	}()
	err := w.Handle(ctx, lease)
	var retry *Retry
	var permanent *Permanent
	switch {
	case err == nil:
	case errors.Is(err, ErrDrop):
		settle.Disposition = "drop"
	case errors.As(err, &permanent):
		settle.Disposition, settle.Executed = "permanent", executed(permanent.NotExecuted)
		settle.Error = &Failure{Kind: "Permanent", Code: permanent.Code, Message: message(err)}
	case errors.As(err, &retry):
		settle.Disposition, settle.Executed = "retry", executed(retry.NotExecuted)
		settle.Error = &Failure{Kind: "Retry", Code: retry.Code, Message: message(err)}
		if retry.After > 0 {
			settle.After = fmt.Sprintf("%dms", retry.After.Milliseconds())
		}
	default:
		settle.Disposition, settle.Error = "retry", &Failure{Kind: fmt.Sprintf("%T", err), Message: message(err)}
	}
	return settle
}

func executed(not bool) string {
	if not {
		return "no"
	}
	return "unknown"
}

func message(err error) string {
	text := err.Error()
	return text[:min(len(text), 2000)]
}
