package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTargets: each declared port of a pod is a target, with the labels by which Prometheus selects and names it.
func TestTargets(t *testing.T) {
	lists := map[string]string{
		"/api/v1/pods": `{"items": [
			{"metadata": {"name": "a", "namespace": "n", "labels": {"app.kubernetes.io/name": "x"}, "annotations": {"prometheus.io/scrape": "true"}},
			 "spec": {"nodeName": "node-1", "containers": [{"name": "one", "ports": [{"containerPort": 80}]}, {"name": "two", "ports": [{"containerPort": 81}]}, {"name": "none"}]},
			 "status": {"phase": "Running", "podIP": "fd00::1"}},
			{"metadata": {"name": "pending"}, "spec": {"containers": [{"name": "one", "ports": [{"containerPort": 80}]}]}, "status": {}}]}`,
		"/api/v1/nodes": `{"items": [{"metadata": {"name": "node-1"}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
			"addresses": [{"type": "Hostname", "address": "node-1"}, {"type": "InternalIP", "address": "10.0.0.1"}]}}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = w.Write([]byte(lists[r.URL.Path]))
	}))
	defer server.Close()
	token := "secret\n"
	targets := handler(&apiServer{url: server.URL, token: func() ([]byte, error) { return []byte(token), nil }, client: server.Client()})
	pod := func(container, address string) group {
		return group{[]string{address}, map[string]string{
			"__meta_kubernetes_namespace": "n", "__meta_kubernetes_pod_name": "a", "__meta_kubernetes_pod_container_name": container,
			"__meta_kubernetes_pod_node_name": "node-1", "__meta_kubernetes_pod_phase": "Running",
			"__meta_kubernetes_pod_annotation_prometheus_io_scrape": "true", "__meta_kubernetes_pod_label_app_kubernetes_io_name": "x",
		}}
	}
	for path, want := range map[string][]group{
		"/pods":  {pod("one", "[fd00::1]:80"), pod("two", "[fd00::1]:81")},
		"/nodes": {{[]string{"10.0.0.1:10250"}, map[string]string{"__meta_kubernetes_node_name": "node-1"}}},
	} {
		recorder := httptest.NewRecorder()
		targets.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		var got []group
		if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s: %d %s: %v", path, recorder.Code, recorder.Body, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	token = "expired"
	recorder := httptest.NewRecorder()
	targets.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/pods", nil))
	if recorder.Code != http.StatusBadGateway {
		t.Errorf("without rights the answer is %d %s, want an error, so that Prometheus keeps its targets", recorder.Code, recorder.Body)
	}
}
