module github.com/longshore-csi/longshore/attacher

go 1.26.0

require (
	github.com/container-storage-interface/spec v1.13.0
	github.com/google/go-cmp v0.7.0
	github.com/prometheus/client_golang v1.25.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.23.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	k8s.io/klog/v2 v2.140.0
)

require (
	github.com/longshore-csi/longshore/csikit v0.0.0
)

replace (
	github.com/longshore-csi/longshore/csikit => ../csikit
)
