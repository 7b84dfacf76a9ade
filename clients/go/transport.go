package redrive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answerMax is the longest answer that is read.
const answerMax = 64 << 20

// Backoff says how long to wait between two tries: exponential with full jitter, at most Cap, for Limit in all.
type Backoff struct {
	Base  time.Duration // 100 ms if zero
	Cap   time.Duration // 5 s if zero
	Limit time.Duration // a minute if zero; negative: until ctx is done
}

func (b Backoff) wait(try int) time.Duration {
	base, most := orElse(b.Base, 100*time.Millisecond), orElse(b.Cap, 5*time.Second)
	bound := min(float64(most), float64(base)*math.Pow(2, float64(min(try, 30))))
	return time.Duration(rand.Float64() * bound)
}

func orElse(given, usual time.Duration) time.Duration {
	if given == 0 {
		return usual
	}
	return given
}

// Problem is a refusal of the server's. Repeating the request does not help.
type Problem struct {
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Type      string `json:"type"`
	Detail    string `json:"detail"`
	Retryable *bool  `json:"retryable"`
	WaitMS    int64  `json:"retry_after_ms"`
}

func (p *Problem) Error() string {
	return fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Detail)
}

// Unanswered says that there was no answer within the time limit. Whether the request took effect is not known: repeat it
// with the same id or key.
type Unanswered struct {
	Key   string // of an idempotent call
	Tries int
	Last  error
}

func (u *Unanswered) Error() string {
	if u.Key != "" {
		return fmt.Sprintf("key %s: no answer after %d tries, the last: %v", u.Key, u.Tries, u.Last)
	}
	return fmt.Sprintf("no answer after %d tries, the last: %v", u.Tries, u.Last)
}

func (u *Unanswered) Unwrap() error { return u.Last }

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// problem reads a problem document; its code is empty if there is none.
func (a answer) problem() *Problem {
	said := &Problem{}
	if strings.Contains(a.header.Get("Content-Type"), "json") {
		_ = json.Unmarshal(a.body, said)
	}
	if said.Code == "" {
		said.Code = said.Type[strings.LastIndex(said.Type, ":")+1:]
	}
	said.Status = a.status
	return said
}

// isRetryable says whether the same request may succeed later: as the document says, or by the status.
func (a answer) isRetryable(said *Problem) bool {
	if said.Retryable != nil {
		return *said.Retryable
	}
	switch a.status {
	case 408, 425, 429, 500, 502, 503, 504:
		return true
	}
	return false
}

// wait is how long the answer asks to wait.
func (a answer) wait(said *Problem) time.Duration {
	wait := time.Duration(said.WaitMS) * time.Millisecond
	if seconds, err := strconv.Atoi(a.header.Get("Retry-After")); err == nil {
		wait = max(wait, time.Duration(seconds)*time.Second)
	}
	return wait
}

// exchange sends one request, and fails if there is no whole answer.
func exchange(ctx context.Context, client *http.Client, timeout time.Duration, method, url string, header http.Header, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	// The transport would repeat a request with this header by itself, on a connection that was closed; so do we.
	request.Header = header.Clone()
	response, err := withoutRedirects(client).Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	return answer{response.StatusCode, response.Header, read}, err
}

// withoutRedirects copies a client so that a redirect is an answer: a POST repeated as a GET would lose its body.
func withoutRedirects(client *http.Client) *http.Client {
	if client == nil {
		client = http.DefaultClient
	}
	copied := *client
	copied.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &copied
}

// repeated calls once until it is done, waiting as long as it says in between.
func repeated(ctx context.Context, backoff Backoff, once func() (done bool, wait time.Duration, failure error)) error {
	var end time.Time
	if limit := orElse(backoff.Limit, time.Minute); limit > 0 {
		end = time.Now().Add(limit)
	}
	for try := 0; ; try++ {
		done, asked, failure := once()
		if done {
			return failure
		}
		wait := max(backoff.wait(try), asked)
		if !end.IsZero() && time.Now().Add(wait).After(end) {
			return &Unanswered{Tries: try + 1, Last: failure}
		}
		select {
		case <-ctx.Done():
			return &Unanswered{Tries: try + 1, Last: ctx.Err()}
		case <-time.After(wait):
		}
	}
}

// tries overrides how often and how long one request is tried.
type tries struct {
	timeout time.Duration
	forever bool
}

func (c *Client) timeout() time.Duration { return orElse(c.Timeout, 30*time.Second) }

// post sends JSON until there is an answer. Only for requests that are safe to repeat, which all of this package are.
func (c *Client) post(ctx context.Context, path string, ask, said any, how tries) error {
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	if c.Token != "" {
		header.Set("Authorization", "Bearer "+c.Token)
	}
	backoff := c.Backoff
	if how.forever {
		backoff.Limit = -1
	}
	url := strings.TrimSuffix(c.URL, "/") + path
	return repeated(ctx, backoff, func() (bool, time.Duration, error) {
		answer, err := exchange(ctx, c.HTTP, orElse(how.timeout, c.timeout()), "POST", url, header, body)
		if err != nil {
			return false, 0, err
		}
		if answer.status < 300 {
			err := json.Unmarshal(answer.body, said)
			return err == nil, 0, err
		}
		problem := answer.problem()
		return !answer.isRetryable(problem), answer.wait(problem), problem
	})
}
