package kubemetrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Rest measures requests to the API server.
type Rest struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewRest registers rest_client_requests_total and rest_client_request_duration_seconds on reg. It panics
// when they are there already.
func NewRest(reg prometheus.Registerer) *Rest {
	r := &Rest{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "How many requests were sent, by status code, method and host; the code is <error> when no answer came.",
		}, []string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "How long it took until the answer began, by verb and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
	reg.MustRegister(r.requests, r.duration)
	return r
}

// Wrap measures what goes through rt. Give it to rest.Config: cfg.Wrap(rest.Wrap).
func (r *Rest) Wrap(rt http.RoundTripper) http.RoundTripper {
	return &roundTripper{next: rt, rest: r}
}

type roundTripper struct {
	next http.RoundTripper
	rest *Rest
}

// RoundTrip implements http.RoundTripper.
func (t *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := t.next.RoundTrip(req)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.rest.requests.WithLabelValues(code, req.Method, req.URL.Host).Inc()
	t.rest.duration.WithLabelValues(req.Method, req.URL.Host).Observe(time.Since(began).Seconds())
	return resp, err
}

// WrappedRoundTripper lets client-go find what is inside.
func (t *roundTripper) WrappedRoundTripper() http.RoundTripper { return t.next }
