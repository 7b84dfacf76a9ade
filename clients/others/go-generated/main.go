// A client that oapi-codegen generated: publishes, leases, settles, lists and redrives.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"generated/api"
)

func say(name string, ok bool, note any) {
	line, _ := json.Marshal(map[string]any{"client": "oapi-codegen", "case": name, "ok": ok, "note": fmt.Sprint(note)})
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var ask struct{ URL string }
	must(json.NewDecoder(os.Stdin).Decode(&ask))
	ctx := context.Background()
	client, err := api.NewClientWithResponses(ask.URL)
	must(err)
	text := func(body string) io.Reader { return strings.NewReader(body) }
	made, err := client.PublishWithBodyWithResponse(ctx, "go", &api.PublishParams{}, "application/json", text(`{"id":"go","payload":{"euro":17}}`))
	must(err)
	say("publishes", made.StatusCode() == http.StatusAccepted, string(made.Body))
	most, wait := 1, "5s"
	leased, err := client.LeaseWithResponse(ctx, "go", api.Ask{Max: &most, Wait: &wait})
	must(err)
	ok := leased.JSON200 != nil && len(leased.JSON200.Leases) == 1 && leased.JSON200.Leases[0].Id == "go"
	say("leases", ok, string(leased.Body))
	if !ok {
		os.Exit(1)
	}
	one := leased.JSON200.Leases[0]
	held := fmt.Sprintf(`{"leases":[{"id":%q,"attempt":%d,"token":%q,"disposition":"permanent"}]}`, one.Id, one.Attempt, one.Token)
	settled, err := client.SettleWithBodyWithResponse(ctx, "go", "application/json", text(held))
	must(err)
	say("settles", settled.JSON200 != nil && settled.JSON200.Results[0].Status == 200, string(settled.Body))
	listed, err := client.EventsWithResponse(ctx, &api.EventsParams{})
	must(err)
	say("lists", listed.StatusCode() == http.StatusOK, string(listed.Body))
	redriven, err := client.RedriveOneWithResponse(ctx, "go", "go", api.RedriveOneJSONRequestBody{})
	must(err)
	say("redrives", redriven.StatusCode() == http.StatusOK, string(redriven.Body))
}
