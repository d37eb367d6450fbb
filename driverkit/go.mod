module github.com/longshore-csi/longshore/driverkit

go 1.26.0

toolchain go1.26.9

require (
	github.com/google/go-cmp v0.7.0
	github.com/moby/sys/mountinfo v0.7.2
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
	k8s.io/mount-utils v0.37.2
	k8s.io/utils v0.0.0-20260626114624-be93311217bd
)

require (
	github.com/go-logr/logr v1.4.4 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
)
