package redrive

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrSignature says that a request is not what the server sent, or is too old. Answer 401.
var ErrSignature = errors.New("invalid webhook signature")

// Tolerance is how far the time of a webhook may be from this clock.
const Tolerance = 5 * time.Minute

// Verify checks that one of the secrets signed this request, and returns its webhook-id, by which to dedupe. A secret is
// base64, with whsec_ before it or without. Give the raw body, before anything parses it.
func Verify(secrets []string, header http.Header, body []byte, now time.Time) (string, error) {
	id, timestamp := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	if id == "" || timestamp == "" || header.Get("Webhook-Signature") == "" {
		return "", fmt.Errorf("%w: a webhook- header is missing", ErrSignature)
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > Tolerance {
		return "", fmt.Errorf("%w: webhook-timestamp is too far from this clock", ErrSignature)
	}
	matches := 0
	for _, secret := range secrets {
		key, err := decodeSecret(strings.TrimPrefix(strings.TrimSpace(secret), "whsec_"))
		if err != nil {
			return "", fmt.Errorf("a secret is base64, with whsec_ before it or without: %w", err)
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		expected := []byte(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		for _, one := range strings.Split(header.Get("Webhook-Signature"), " ") {
			if given, ok := strings.CutPrefix(one, "v1,"); ok {
				// All are compared, each in constant time.
				matches |= subtle.ConstantTimeCompare([]byte(given), expected)
			}
		}
	}
	if matches == 0 {
		return "", fmt.Errorf("%w: none matches", ErrSignature)
	}
	return id, nil
}
