package httpserve

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// The state was served to everybody on the pod network, without a switch.
func TestStateIsForThisHostOnly(t *testing.T) {
	cases := map[string]struct {
		reason string
		from   string
		pprof  bool
		want   int
	}{
		"Loopback":   {reason: "kubectl port-forward", from: "127.0.0.1:1", want: http.StatusOK},
		"Loopback6":  {reason: "kubectl port-forward", from: "[::1]:1", want: http.StatusOK},
		"Mapped":     {reason: "a dual-stack listener sees IPv4 so", from: "[::ffff:127.0.0.1]:1", want: http.StatusOK},
		"OtherPod":   {reason: "another pod", from: "10.1.2.3:1", want: http.StatusForbidden},
		"Zone":       {reason: "another node", from: "[fe80::1%eth0]:1", want: http.StatusForbidden},
		"Nonsense":   {reason: "in doubt another host", from: "@", want: http.StatusForbidden},
		"WithSwitch": {reason: "the operator trusts the network", from: "10.1.2.3:1", pprof: true, want: http.StatusOK},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			handler := newHandler(Config{State: func() any { return "busy" }, Pprof: tc.pprof}.withDefaults())
			request := httptest.NewRequest(http.MethodGet, pathState, http.NoBody)
			request.RemoteAddr = tc.from
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			if answer.Code != tc.want {
				t.Errorf("%s: got %d %s, want %d", tc.reason, answer.Code, answer.Body, tc.want)
			}
		})
	}
}
