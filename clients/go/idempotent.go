package redrive

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// IdempotentClient sends requests behind a gateway or a layer of Redrive, and understands its answers. A call is repeated
// under its key while repeating helps. A problem document that is not retryable is returned as a *Problem, outcome-unknown
// and key-reused among them; every other answer is the API's own, and is returned whatever its status.
type IdempotentClient struct {
	HTTP    *http.Client  // http.DefaultClient if nil
	Header  http.Header   // of every request
	Timeout time.Duration // of one try; 30 s if zero
	Backoff Backoff
	Wait    time.Duration // for a request that still runs; 10 s if zero
}

// Call is one request. Without a Key one is minted; give your own if the intent outlives this process.
type Call struct {
	Method string // POST if empty
	URL    string
	Body   []byte
	JSON   any // instead of Body
	Header http.Header
	Key    string
}

// Reply is the answer of the API. Replayed says that it is the stored first one.
type Reply struct {
	Status   int
	Header   http.Header
	Body     []byte
	Key      string
	Replayed bool
}

// NewKey mints a key for one call.
func NewKey() string {
	var random [16]byte
	// Never fails, as crypto/rand says.
	_, _ = rand.Read(random[:])
	random[6], random[8] = random[6]&0x0f|0x40, random[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
}

// Do makes a call.
func (c *IdempotentClient) Do(ctx context.Context, call Call) (Reply, error) {
	key, method, body := call.Key, call.Method, call.Body
	if key == "" {
		key = NewKey()
	}
	if method == "" {
		method = "POST"
	}
	header := http.Header{}
	for _, given := range []http.Header{c.Header, call.Header} {
		for name, values := range given {
			header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if call.JSON != nil {
		encoded, err := json.Marshal(call.JSON)
		if err != nil {
			return Reply{}, err
		}
		body = encoded
		header.Set("Content-Type", "application/json")
	}
	header.Set("Idempotency-Key", `"`+key+`"`)
	header.Set("Prefer", fmt.Sprintf("wait=%d", int(orElse(c.Wait, 10*time.Second).Seconds())))
	var reply Reply
	err := repeated(ctx, c.Backoff, func() (bool, time.Duration, error) {
		answer, err := exchange(ctx, c.HTTP, orElse(c.Timeout, 30*time.Second), method, call.URL, header, body)
		if err != nil {
			return false, 0, err
		}
		problem := &Problem{Status: answer.status}
		if strings.Contains(answer.header.Get("Content-Type"), "problem+json") {
			problem = answer.problem()
		}
		replayed := answer.header.Get("Idempotent-Replayed") == "true"
		// A stored answer does not change.
		final := replayed || answer.header.Get("Redrive-No-Retry") == "1"
		running := answer.status == http.StatusConflict && answer.header.Get("Retry-After") != "" && problem.Retryable == nil
		if !final && (answer.isRetryable(problem) || running) {
			return false, answer.wait(problem), problem
		}
		if !final && answer.status >= 400 && problem.Retryable != nil {
			return true, 0, problem
		}
		reply = Reply{answer.status, answer.header, answer.body, key, replayed}
		return true, 0, nil
	})
	var unanswered *Unanswered
	if errors.As(err, &unanswered) {
		unanswered.Key = key
	}
	return reply, err
}
