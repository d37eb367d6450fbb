// Package csiserver serves a CSI driver's gRPC services on a unix socket or a
// TCP port, with what every driver needs around them: deadlines, redacted
// logs, metrics, traces, recovery from panics and an orderly end.
//
// It is for drivers, and links no Kubernetes client. A component that calls a
// driver uses package csiclient.
package csiserver
