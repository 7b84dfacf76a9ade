// Package redrive is a client of Redrive's HTTP API: publish events, work on them, verify webhooks, and call retry-safe
// APIs. It needs the standard library and nothing else.
package redrive

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// batch is the number of events of one request; the server's batch_max is larger.
const batch = 500

// Event is an event to publish. Its ID is the identity of the intent: mint it once, and keep it over all tries.
type Event struct {
	ID            string            `json:"id"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"` // any bytes, instead of Payload
	Key           string            `json:"key,omitempty"`
	Tenant        string            `json:"tenant,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Correlation   string            `json:"correlation,omitempty"`
	Causation     string            `json:"causation,omitempty"`
	Delay         string            `json:"delay,omitempty"`
	ExpiresAfter  string            `json:"expires_after,omitempty"`
}

// Published says what became of an event: accepted, duplicate with the state of the first, or refused with a problem.
type Published struct {
	ID      string          `json:"id"`
	Result  string          `json:"result"`
	First   json.RawMessage `json:"first,omitempty"`
	Problem *Problem        `json:"problem,omitempty"`
}

// Held is what proves a lease.
type Held struct {
	ID      string `json:"id"`
	Tenant  string `json:"tenant"`
	Attempt int    `json:"attempt"`
	Token   string `json:"token"`
}

// Lease is the right to run one attempt of an event, until it is settled or its time is over.
type Lease struct {
	Held
	Until          time.Time      `json:"until"`
	Mode           string         `json:"mode"`
	IdempotencyKey string         `json:"idempotency_key"` // for downstream calls: the same for all attempts
	Key            string         `json:"key"`
	Text           string         `json:"payload"`
	Bytes          []byte         `json:"payload_base64"`
	Headers        [][2]string    `json:"headers"`
	ContentType    string         `json:"content_type"`
	Correlation    string         `json:"correlation"`
	Causation      string         `json:"causation"`
	CloudEvent     map[string]any `json:"cloudevent"`
}

// Payload returns the bytes of the event.
func (l *Lease) Payload() []byte {
	if l.Bytes != nil {
		return l.Bytes
	}
	return []byte(l.Text)
}

// Failure says why an attempt failed.
type Failure struct {
	Kind    string `json:"kind,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Settle is the outcome of an attempt: Disposition is ok, retry, permanent or drop.
type Settle struct {
	Held
	Disposition string   `json:"disposition"`
	Result      string   `json:"result,omitempty"`
	After       string   `json:"after,omitempty"`
	Error       *Failure `json:"error,omitempty"`
	Executed    string   `json:"executed,omitempty"`
}

// Settled says what became of a settle.
type Settled struct {
	ID     string `json:"id"`
	Status int    `json:"status"`
	Result string `json:"result"`
}

// Client is a server. Every request is repeated under the same ids until it is answered. Safe for concurrent use.
type Client struct {
	URL     string
	Token   string
	HTTP    *http.Client  // http.DefaultClient if nil
	Timeout time.Duration // of one try; 30 s if zero
	Backoff Backoff
}

func (c *Client) path(queue, rest string) string {
	return "/v1/queues/" + url.PathEscape(queue) + rest
}

// Publish publishes one event. A *Problem says that it is refused, an *Unanswered that its fate is not known.
func (c *Client) Publish(ctx context.Context, queue string, event Event) (Published, error) {
	var said Published
	err := c.post(ctx, c.path(queue, "/events"), event, &said, tries{})
	return said, err
}

// PublishMany publishes many events; a refused one does not hold up the others.
func (c *Client) PublishMany(ctx context.Context, queue string, events []Event) ([]Published, error) {
	var results []Published
	for start := 0; start < len(events); start += batch {
		var said struct{ Results []Published }
		ask := map[string]any{"events": events[start:min(start+batch, len(events))]}
		if err := c.post(ctx, c.path(queue, "/events"), ask, &said, tries{}); err != nil {
			return results, err
		}
		results = append(results, said.Results...)
	}
	return results, nil
}

// Ask says what to lease.
type Ask struct {
	Max    int    `json:"max,omitempty"`
	Lease  string `json:"lease,omitempty"`
	Wait   string `json:"wait,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

// Lease leases events, and waits for the first as long as ask says. It repeats its request until ctx is done.
func (c *Client) Lease(ctx context.Context, queue string, ask Ask) ([]Lease, error) {
	var said struct{ Leases []Lease }
	// A wait may be as long as the server lets it be; a lost answer costs the lease's time and no event.
	err := c.post(ctx, c.path(queue, "/leases"), ask, &said, tries{timeout: c.timeout() + time.Minute, forever: true})
	return said.Leases, err
}

// Extend extends leases by so long from now; one result each.
func (c *Client) Extend(ctx context.Context, queue string, leases []Held, lease string) ([]Settled, error) {
	var said struct{ Results []Settled }
	err := c.post(ctx, c.path(queue, "/leases/extend"), map[string]any{"leases": leases, "lease": lease}, &said, tries{})
	return said.Results, err
}

// Settle commits outcomes; one result each. Repeating a settle is safe.
func (c *Client) Settle(ctx context.Context, queue string, settles []Settle) ([]Settled, error) {
	var said struct{ Results []Settled }
	err := c.post(ctx, c.path(queue, "/leases/settle"), map[string]any{"leases": settles}, &said, tries{})
	return said.Results, err
}

// decodeSecret reads base64, with whsec_ before it or without.
func decodeSecret(secret string) ([]byte, error) {
	if bytes, err := base64.StdEncoding.DecodeString(secret); err == nil {
		return bytes, nil
	}
	return base64.RawStdEncoding.DecodeString(secret)
}
