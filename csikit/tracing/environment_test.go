package tracing

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const exporter, endpoint, own = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	const general, special = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	cases := map[string]struct {
		reason string
		env    map[string]string
		want   protocol
		err    string
	}{
		"Nothing":         {reason: "nobody asked for traces"},
		"ProtocolAlone":   {reason: "metrics may be exported by others", env: map[string]string{general: "grpc"}},
		"Endpoint":        {reason: "a collector listens", env: map[string]string{endpoint: "http://collector:4318"}, want: overHTTP},
		"OwnEndpoint":     {reason: "for traces alone", env: map[string]string{own: "https://collector/v1/traces"}, want: overHTTP},
		"ExporterAlone":   {reason: "on this machine", env: map[string]string{exporter: "otlp"}, want: overHTTP},
		"None":            {reason: "metrics only", env: map[string]string{exporter: "none", endpoint: "http://collector:4318"}},
		"Disabled":        {reason: "it wins over all, whatever that is", env: map[string]string{"OTEL_SDK_DISABLED": "TRUE", exporter: "zipkin", endpoint: "x"}},
		"GRPC":            {reason: "asked for", env: map[string]string{endpoint: "http://collector:4317", general: "grpc"}, want: overGRPC},
		"SpecialProtocol": {reason: "that of traces wins", env: map[string]string{exporter: "otlp", general: "grpc", special: "http/protobuf"}, want: overHTTP},
		"Zipkin":          {reason: "not linked", env: map[string]string{exporter: "zipkin"}, err: `OTEL_TRACES_EXPORTER="zipkin": must be otlp or none`},
		"Two":             {reason: "one is enough", env: map[string]string{exporter: "otlp,console"}, err: "OTEL_TRACES_EXPORTER"},
		"JSON":            {reason: "not linked", env: map[string]string{exporter: "otlp", special: "http/json"}, err: `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/json": must be grpc or http/protobuf`},
		"NoURL":           {reason: "the usual mistake", env: map[string]string{endpoint: "collector:4317"}, err: `OTEL_EXPORTER_OTLP_ENDPOINT="collector:4317": must be a URL such as`},
		"NoHost":          {reason: "nowhere", env: map[string]string{own: "http://"}, err: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
		"Garbage":         {reason: "no URL at all", env: map[string]string{endpoint: "http://[::1"}, err: "OTEL_EXPORTER_OTLP_ENDPOINT"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parse(func(key string) string { return c.env[key] })
			if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %q, %v, want %q, error %q", c.reason, got, err, c.want, c.err)
			}
		})
	}
}
