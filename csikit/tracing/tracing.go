// Package tracing exports the OpenTelemetry spans of a process to where the environment says, by the variables that the
// OpenTelemetry specification has for that. It is for main functions: it sets the tracer provider of the process. Libraries,
// and programs that have a provider already, do without it.
//
// Without the variables nothing is started. They are OTEL_TRACES_EXPORTER (otlp or none; otlp where an endpoint is given),
// OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL (http/protobuf, which is the default, or grpc), _HEADERS, _TIMEOUT, _CERTIFICATE and
// the like, the same with OTEL_EXPORTER_OTLP_TRACES_ before them, OTEL_TRACES_SAMPLER and _ARG, OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_* and OTEL_SDK_DISABLED. Traces are handed on in the headers of the W3C.
package tracing

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/version"
)

// flushTimeout bounds the export of the last spans: a process that stops does not wait for a collector that cannot be reached.
const flushTimeout = 5 * time.Second

// Run calls run, whose argument reports whether spans are exported meanwhile, and exports the last ones when it returns. The service is
// the name that the spans have unless the environment has another. An error is that of run, or names the variable that makes no
// sense. A collector that cannot be reached is no error: it is logged by the logger of ctx, and spans are lost.
func Run(ctx context.Context, service string, run func(ctx context.Context, on bool) error) error {
	wanted, err := parse(os.Getenv)
	if err != nil {
		return err
	}
	if wanted == off {
		return run(ctx, false)
	}
	logger := klog.FromContext(ctx)
	otel.SetLogger(logger)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Error(err, "Could not trace calls") }))
	provider, err := newProvider(ctx, service, wanted)
	if err != nil {
		return err
	}
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(flush); err != nil {
			logger.Error(err, "Could not export the last spans")
		}
	}()
	return run(ctx, true)
}

// newProvider makes what collects spans and exports them. It connects later.
func newProvider(ctx context.Context, service string, p protocol) (*sdktrace.TracerProvider, error) {
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version.Get().Version)),
		resource.WithHost(),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // the last one wins
	)
	if err != nil {
		return nil, fmt.Errorf("describe the process for traces, see OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := newExporter(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("export traces by %s: %w", p, err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithResource(described), sdktrace.WithBatcher(exporter)), nil
}

func newExporter(ctx context.Context, p protocol) (sdktrace.SpanExporter, error) {
	if p == overGRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}
