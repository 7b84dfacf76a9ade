// Go clients that others wrote: standardwebhooks, the CloudEvents SDK, go-retryablehttp.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/hashicorp/go-retryablehttp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func say(client, name string, ok bool, note any) {
	line, _ := json.Marshal(map[string]any{"client": client, "case": name, "ok": ok, "note": fmt.Sprint(note)})
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func webhooks() {
	var asks []struct {
		Headers map[string]string
		Body    string
		Secrets []string
	}
	must(json.NewDecoder(os.Stdin).Decode(&asks))
	for _, ask := range asks {
		header := http.Header{}
		for name, value := range ask.Headers {
			header.Set(name, value)
		}
		check := func(secret string) error {
			verifier, err := standardwebhooks.NewWebhook(secret)
			must(err)
			return verifier.Verify([]byte(ask.Body), header)
		}
		id := ask.Headers["redrive-id"]
		for n, secret := range ask.Secrets {
			err := check("whsec_" + secret)
			say("standardwebhooks (Go)", fmt.Sprintf("%s: secret %d", id, n+1), err == nil, err)
		}
		say("standardwebhooks (Go)", id+": another secret is refused", check("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD") != nil, "")
	}
}

func events() {
	var ask struct{ URL, Label string }
	must(json.NewDecoder(os.Stdin).Decode(&ask))
	target := ask.URL + "/v1/queues/jobs/events"
	client, err := cloudevents.NewClientHTTP()
	must(err)
	event := func(mode string) cloudevents.Event {
		event := cloudevents.NewEvent()
		event.SetID(ask.Label + "-" + mode)
		event.SetSource("/shop")
		event.SetType("order")
		event.SetSubject("Zürich 100% sure")
		must(event.SetData(cloudevents.ApplicationJSON, map[string]int{"euro": 17}))
		return event
	}
	for _, mode := range []string{"binary", "structured"} {
		ctx := cloudevents.ContextWithTarget(context.Background(), target)
		if mode == "binary" {
			ctx = cloudevents.WithEncodingBinary(ctx)
		} else {
			ctx = cloudevents.WithEncodingStructured(ctx)
		}
		answer, result := client.Request(ctx, event(mode))
		understood := answer != nil && answer.Type() == "redrive.published"
		say("cloudevents (Go)", mode+": Request() is understood", cloudevents.IsACK(result) && understood, result)
	}
	batch, err := json.Marshal([]cloudevents.Event{event("batched")})
	must(err)
	answer, err := http.Post(target, "application/cloudevents-batch+json", strings.NewReader(string(batch)))
	must(err)
	say("cloudevents (Go)", "batched: accepted", answer.StatusCode == 202, answer.Status)
}

func retries() {
	var ask struct{ URL string }
	must(json.NewDecoder(os.Stdin).Decode(&ask))
	client := retryablehttp.NewClient()
	client.Logger, client.RetryMax, client.RetryWaitMin = nil, 5, 100_000_000
	for _, mode := range []string{"ok", "busy", "cut"} {
		body := []byte("mode=" + mode + "&by=go-retryablehttp")
		request, err := retryablehttp.NewRequest("POST", ask.URL+"/v1/charges", body)
		must(err)
		request.Header.Set("Idempotency-Key", "go-"+mode)
		answer, err := client.Do(request)
		ok := err == nil && answer.StatusCode == 200
		if err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		say("go-retryablehttp", mode+": answered", ok, err)
	}
}

func main() {
	switch os.Args[1] {
	case "webhooks":
		webhooks()
	case "cloudevents":
		events()
	case "retries":
		retries()
	}
}
