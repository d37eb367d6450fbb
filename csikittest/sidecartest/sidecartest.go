// Package sidecartest tests components that package sidecar makes: Start runs one with a real HTTP listener, on the socket of a driver
// that the test serves, and Record finds out which rights it needs of the API server.
//
// It waits in real time. For flows in virtual time, see package reconciletest.
package sidecartest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/logtest"
)

const (
	// patience is how long a condition is waited for.
	patience = 2 * time.Minute
	// poll is the pause before a condition, or the driver, is asked again.
	poll = 10 * time.Millisecond
	// fewestMetrics is what every component serves: Go, the process, queues, election.
	fewestMetrics = 15
)

// AnyPort is the endpoint of a component whose port the system chooses.
const AnyPort = "127.0.0.1:0"

// Running is a component that Start has started.
type Running struct {
	// URL is where the component serves HTTP.
	URL string

	tb    testing.TB
	log   *logtest.Log
	stop  context.CancelFunc
	ended chan error
}

// Start runs a component until the test ends, and returns when it listens at a port that the system has chosen. The driver is asked for
// more often than in production.
func Start(tb testing.TB, cfg sidecar.Config) *Running {
	tb.Helper()
	cfg.Options.HTTP.Endpoint = AnyPort
	cfg.CSI.Poll = poll
	return StartComponent(tb, func(ctx context.Context) error { return sidecar.Run(ctx, cfg) })
}

// StartComponent is Start for a component that is no sidecar. It must serve HTTP at AnyPort, by package httpserve.
func StartComponent(tb testing.TB, run func(context.Context) error) *Running {
	tb.Helper()
	r := &Running{tb: tb, log: &logtest.Log{Copy: tb.Output()}, ended: make(chan error, 1)}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(klog.NewContext(tb.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(r.log)))))
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		r.ended <- run(ctx)
	}()
	tb.Cleanup(func() {
		r.stop()
		<-finished
	})
	address := regexp.MustCompile(`"Serving HTTP".* address="([^"]+)"`)
	r.Eventually("serve HTTP", func() bool {
		found := address.FindStringSubmatch(r.Log())
		if found != nil {
			r.URL = "http://" + found[1]
		}
		return found != nil
	})
	return r
}

// Eventually waits until ok returns true. It ends the test if that does not happen within minutes, or the component ends.
func (r *Running) Eventually(what string, ok func() bool) {
	r.tb.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-deadline:
			r.tb.Fatalf("%s: did not happen", what)
		case err := <-r.ended:
			r.tb.Fatalf("%s: the component ended: %v", what, err)
		case <-time.After(poll):
		}
	}
}

// Get returns the answer of the component to an HTTP request.
func (r *Running) Get(path string) (code int, body string) {
	r.tb.Helper()
	request, err := http.NewRequestWithContext(r.tb.Context(), http.MethodGet, r.URL+path, nil)
	if err != nil {
		r.tb.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Do(request)
	if err != nil {
		r.tb.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		r.tb.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// Serves waits until /metrics has each of the parts.
func (r *Running) Serves(parts ...string) {
	r.tb.Helper()
	for _, part := range parts {
		r.Eventually("serve "+part, func() bool {
			_, body := r.Get("/metrics")
			return strings.Contains(body, part)
		})
	}
}

// CheckMetrics checks that the document, "docs/metrics.md" for instance, has every metric that is served, but for those of Go and the process.
func (r *Running) CheckMetrics(document string) {
	r.tb.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		r.tb.Fatal(err)
	}
	_, body := r.Get("/metrics")
	families := regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(body, -1)
	if len(families) < fewestMetrics {
		r.tb.Errorf("only %d metrics are served:\n%s", len(families), body)
	}
	for _, family := range families {
		name := family[1]
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") && !strings.Contains(string(text), "`"+name+"`") {
			r.tb.Errorf("metric %s is not in %s", name, document)
		}
	}
}

// Log returns what the component has logged so far.
func (r *Running) Log() string { return r.log.String() }

// Stop ends the component, which must not be an error.
func (r *Running) Stop() {
	r.tb.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.tb.Errorf("an ordinary stop ended in %v", err)
	}
}

// Wait returns the error of a component that ends by itself.
func (r *Running) Wait() error {
	r.tb.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		r.tb.Fatal("the component did not end")
		return nil
	}
}
