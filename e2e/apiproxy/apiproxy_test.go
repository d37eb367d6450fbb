package apiproxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestNamesOfRequests(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/persistentvolumeclaims?limit=500&resourceVersion=0":                          "list persistentvolumeclaims",
		"GET /api/v1/persistentvolumeclaims?allowWatchBookmarks=true&watch=true":                  "watch persistentvolumeclaims",
		"PATCH /api/v1/namespaces/default/persistentvolumeclaims/a":                               "patch persistentvolumeclaims",
		"POST /api/v1/namespaces/default/events":                                                  "create events",
		"PUT /apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/a/status":        "update volumesnapshots/status",
		"PATCH /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/a/status?fieldManager=b":   "patch volumesnapshotcontents/status",
		"DELETE /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/a":                        "delete volumesnapshotcontents",
		"DELETE /apis/coordination.k8s.io/v1/namespaces/default/leases":                           "deletecollection leases",
		"GET /apis/snapshot.storage.k8s.io/v1":                                                    "get /apis/snapshot.storage.k8s.io/v1",
		"GET /apis/groupsnapshot.storage.k8s.io/v1/namespaces/default/volumegroupsnapshots/watch": "get volumegroupsnapshots",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := requestName(httptest.NewRequest(method, path, http.NoBody)); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
}

// TestAPIProxy has a server behind the proxy that counts what reaches it.
func TestAPIProxy(t *testing.T) {
	reached := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached++
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"a": {Server: server.URL}}, Contexts: map[string]*clientcmdapi.Context{"a": {Cluster: "a"}}, CurrentContext: "a",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		fault  Fault
		// code is what the client sees, 0 for a broken connection.
		code, reached int
	}{
		"None":      {reason: "the request is passed on", code: http.StatusOK, reached: 1},
		"Refused":   {reason: "the API server does not see it", fault: Fault{Code: http.StatusTooManyRequests}, code: http.StatusTooManyRequests},
		"LostReply": {reason: "the API server acts, and the client does not learn of it", fault: Fault{Lost: true}, reached: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(t, kubeconfig)
			p.SetFault(func(string) Fault { return tc.fault })
			config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			reached = 0
			code := 0
			// A POST: a GET whose connection breaks is sent again by net/http.
			reply, err := http.Post(config.Host+"/api/v1/namespaces/default/events", "application/json", http.NoBody)
			if err == nil {
				code = reply.StatusCode
				_ = reply.Body.Close()
			}
			if code != tc.code || reached != tc.reached || p.Counts()["create events"] != 1 {
				t.Errorf("%s: code %d (%v), reached the server %d times, counted %v", tc.reason, code, err, reached, p.Counts())
			}
		})
	}
}
