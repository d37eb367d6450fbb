package apply_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// server is as much of an API server as the package asks for: it has ConfigMaps and Namespaces, warns of each object by its name, and
// keeps what it was asked.
type server struct {
	mu       sync.Mutex
	requests []request
}

type request struct{ Method, Path, Query, Body string }

func newServer(t *testing.T) (*server, *rest.Config) {
	t.Helper()
	s := &server{}
	mux := http.NewServeMux()
	for path, answer := range map[string]string{
		"GET /api":  `{"kind": "APIVersions", "versions": ["v1"]}`,
		"GET /apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
		"GET /api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
			{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}, {"name": "namespaces", "kind": "Namespace", "namespaced": false}]}`,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		})
	}
	mux.HandleFunc("/api/v1/", s.write)
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	return s, &rest.Config{Host: web.URL, QPS: -1}
}

func (s *server) write(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // an empty one shows in the test
	query, _ := url.QueryUnescape(r.URL.RawQuery)
	s.mu.Lock()
	s.requests = append(s.requests, request{r.Method, r.URL.Path, query, string(body)})
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Warning", fmt.Sprintf(`299 - "about %s"`, path.Base(r.URL.Path)))
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"})
}

func object(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}}}
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	return o
}

// TestRequests: what goes over the wire, for each way to write.
func TestRequests(t *testing.T) {
	const body = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`
	ours := object("ConfigMap", "", "c")
	tests := map[string]struct {
		reason string
		config apply.Config
		do     func(*apply.Client) error
		want   []request
	}{
		"Apply": {
			reason: "an object without a namespace goes to the default one",
			do:     func(c *apply.Client) error { return c.Apply(t.Context(), ours) },
			want:   []request{{"PATCH", "/api/v1/namespaces/default/configmaps/c", "fieldManager=tests&force=true", body}},
		},
		"ApplyElsewhere": {
			reason: "or to the one that is configured",
			config: apply.Config{Namespace: "n"},
			do:     func(c *apply.Client) error { return c.Apply(t.Context(), ours) },
			want:   []request{{"PATCH", "/api/v1/namespaces/n/configmaps/c", "fieldManager=tests&force=true", body}},
		},
		"DryRun": {
			reason: "everything but keeping it",
			do:     func(c *apply.Client) error { return c.DryRun(t.Context(), ours) },
			want:   []request{{"PATCH", "/api/v1/namespaces/default/configmaps/c", "dryRun=All&fieldManager=tests&force=true", body}},
		},
		"Delete": {
			reason: "the last first; what belongs to no namespace is in none, whatever is configured",
			config: apply.Config{Namespace: "n"},
			do:     func(c *apply.Client) error { return c.Delete(t.Context(), object("Namespace", "", "n"), ours) },
			want: []request{
				{"DELETE", "/api/v1/namespaces/n/configmaps/c", "", `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`},
				{"DELETE", "/api/v1/namespaces/n", "", `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`},
			},
		},
		"Nothing": {
			reason: "no object, no request",
			do:     func(c *apply.Client) error { return c.Apply(t.Context()) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, config := newServer(t)
			tc.config.REST, tc.config.Manager = config, "tests"
			client, err := apply.New(tc.config)
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.do(client); err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			for i := range s.requests {
				s.requests[i].Body = strings.TrimSpace(s.requests[i].Body)
			}
			if diff := cmp.Diff(tc.want, s.requests); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestEachWarningFindsItsObject, though objects are written at the same time.
func TestEachWarningFindsItsObject(t *testing.T) {
	s, config := newServer(t)
	client, err := apply.New(apply.Config{REST: config, Manager: "tests", Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = client.Apply(t.Context(), object("ConfigMap", "", fmt.Sprintf("c%d", i))) })
	}
	wg.Wait()
	for i, err := range errs {
		if want := fmt.Sprintf("apply ConfigMap/c%[1]d: warning 299: about c%[1]d", i); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, r := range s.requests {
		if !strings.Contains(r.Query, "fieldValidation=Strict") {
			t.Errorf("fields are not checked: %s", r.Query)
		}
	}
	if config.WarningHandlerWithContext != nil {
		t.Error("the caller's configuration was changed")
	}
}

// TestWarningsAreNoErrorsOfOthers: only Strict makes them errors, and only when something is written.
func TestWarningsAreNoErrorsOfOthers(t *testing.T) {
	for _, strict := range []bool{false, true} {
		_, config := newServer(t)
		client, err := apply.New(apply.Config{REST: config, Manager: "tests", Strict: strict})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Apply(t.Context(), object("ConfigMap", "", "c")); (err != nil) != strict {
			t.Errorf("strict %v: %v", strict, err)
		}
		if err := client.Delete(t.Context(), object("ConfigMap", "", "c")); err != nil {
			t.Errorf("strict %v: %v", strict, err)
		}
	}
}
