package integration

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster/internal/demo"
)

// impatient is a reader who leaves when all of the words have come. The demo writes one line after the other.
type impatient struct {
	text  strings.Builder
	until []string
	leave func()
}

// Write keeps the line.
func (r *impatient) Write(line []byte) (int, error) {
	n, err := r.text.Write(line)
	if !slices.ContainsFunc(r.until, func(word string) bool { return !strings.Contains(r.text.String(), word) }) {
		r.leave()
	}
	return n, err
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestDemoWithoutNodesSaysWhatItWaitsFor shows the demo to a cluster where no pod can run: it must not claim success.
func TestDemoWithoutNodesSaysWhatItWaitsFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The user loses patience when there is no doubt any more: the words are told, and the demo has applied the pod and asks for it.
	told, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer cancel()
		for _, reason := range []chan struct{}{told, asked} {
			select {
			case <-reason:
			case <-ctx.Done():
			}
		}
	}()
	out := &impatient{until: []string{"claim data: Pending", "pod writer: FailedScheduling"}, leave: sync.OnceFunc(func() { close(told) })}
	config, ask := admin(t), sync.OnceFunc(func() { close(asked) })
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods/writer") {
				ask()
			}
			return next.RoundTrip(r)
		})
	})
	err := demo.Run(ctx, demo.Config{REST: config, Examples: "../../../examples", Out: out})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait for pod writer to run") {
		t.Errorf("got %v, told\n%s", err, &out.text)
	}
	if strings.Contains(out.text.String(), "Nothing is left") {
		t.Errorf("the demo tells\n%s", &out.text)
	}
	client := clientOf(t, admin(t))
	for _, err := range []error{
		client.CoreV1().Pods("default").Delete(t.Context(), "writer", metav1.DeleteOptions{}),
		client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{}),
		client.StorageV1().StorageClasses().Delete(t.Context(), "hostpath", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Errorf("what the demo applied is not there: %v", err)
		}
	}
}

func TestDemoNamesABadExample(t *testing.T) {
	tests := map[string]struct {
		reason, text string
		missing      bool
		want         string
	}{
		"Missing":   {reason: "a directory without the examples", missing: true, want: "read the example"},
		"Malformed": {reason: "an example that is no YAML", text: "a: [", want: "1-claim.yaml: decode document 1"},
		"Refused":   {reason: "an example that the server refuses", text: "{apiVersion: v1, kind: Pod, metadata: {name: x}}", want: "apply Pod/x"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if !tc.missing {
				if err := os.WriteFile(filepath.Join(dir, "1-claim.yaml"), []byte(tc.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := demo.Run(t.Context(), demo.Config{REST: admin(t), Examples: dir, Out: &out})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
