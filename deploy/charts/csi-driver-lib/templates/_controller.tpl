{{/* The controller side: the driver and the sidecars that its capabilities ask for, and their account. */}}
{{- define "csi-driver-lib.controller" -}}
{{- $name := printf "%s-controller" (include "csi-driver-lib.name" .) -}}
{{- $values := .Values.controller -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
---
# The controller side, next to the Kubernetes API. The driver and its sidecars share nothing but a socket.
apiVersion: apps/v1
kind: {{ $values.kind }}
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "csi-driver-lib.labels" . | nindent 4 }}
    csi.longshore.dev/controller: "true"
spec:
  replicas: {{ $values.replicas }}
  {{- if eq $values.kind "StatefulSet" }}
  serviceName: ""
  {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ $name }}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ $name }}
        app.kubernetes.io/part-of: {{ include "csi-driver-lib.name" . }}
        csi.longshore.dev/controller: "true"
      annotations: {{- include "csi-driver-lib.podAnnotations" . | nindent 8 }}
    spec:
      {{- include "csi-driver-lib.pod" (list . "controller") | nindent 6 }}
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- if gt (int $values.replicas) 1 }}
      {{- include "csi-driver-lib.spread" $name | nindent 6 }}
      {{- end }}
      securityContext:
        fsGroup: 65532 # the socket's group, so that sidecars need not be root
        seccompProfile: {type: RuntimeDefault}
      containers:
      {{- include "csi-driver-lib.driver" (list . "controller") | nindent 6 }}
      {{- $root := . }}
      {{- range splitList " " (include "csi-driver-lib.sidecars" .) }}
      {{- include "csi-driver-lib.sidecar" (list $root .) | nindent 6 }}
      {{- end }}
      {{- if include "csi-driver-lib.metadata" . }}
      {{- include "csi-driver-lib.metadataContainer" . | nindent 6 }}
      {{- end }}
      {{- include "csi-driver-lib.livenessprobe" (list . "controller") | nindent 6 }}
      {{- if include "csi-driver-lib.healthMonitor" . }}
      {{- include "csi-driver-lib.healthMonitorContainer" . | nindent 6 }}
      {{- end }}
      volumes:
      - name: socket-dir
        emptyDir: {}
      {{- if $values.stateDir }}
      - name: state-dir
        hostPath: {path: {{ include "csi-driver-lib.stateDir" . | quote }}, type: DirectoryOrCreate}
      {{- end }}
      {{- include "csi-driver-lib.apiAccess" . | nindent 6 }}
      {{- if include "csi-driver-lib.metadata" . }}
      - name: certificates
        secret: {secretName: {{ .Values.snapshotMetadata.tlsSecret }}}
      {{- end }}
      {{- with $values.volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* The container of a sidecar that talks to the API server: include "csi-driver-lib.sidecar" (list . NAME). On nodes each makes the volumes and snapshots of its own, and the resizers elect a leader. */}}
{{- define "csi-driver-lib.sidecar" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := get $root.Values.controller $name -}}
{{- $onNodes := $root.Values.provisionOnNodes -}}
{{- $provisioner := eq $name "provisioner" -}}
{{- $ofNode := and $onNodes (ne $name "resizer") -}}
{{- $elects := ternary (not $ofNode) (eq $root.Values.controller.kind "Deployment") $onNodes -}}
{{- $capacity := and $provisioner (include "csi-driver-lib.capacity" $root) -}}
{{- $port := get (dict "provisioner" 9811 "attacher" 9812 "resizer" 9815 "snapshotter" 9816) $name -}}
- name: {{ $name }}
  {{- include "csi-driver-lib.image" (list $root (printf "csi-%s" $name)) | nindent 2 }}
  args:
  - --csi-address=/csi/csi.sock
  {{- if $provisioner }}
  - --extra-create-metadata
  {{- end }}
  - --http-endpoint=:{{ $port }}
  - --termination-grace-period={{ max 15 (int $root.Values.controller.terminationGracePeriodSeconds) }}s
  - --v={{ $root.Values.logLevel }}
  {{- if $elects }}
  - --leader-election
  {{- end }}
  {{- if $ofNode }}
  - --node-deployment
  {{- end }}
  {{- if and $ofNode $provisioner }}
  - --node-deployment-base-delay=2s
  - --node-deployment-max-delay=20s
  {{- end }}
  {{- if $capacity }}
  - --enable-capacity
  {{- if $elects }}
  - --capacity-ownerref-level=2 # the ReplicaSet's owner, not the pod's
  {{- end }}
  {{- end }}
  {{- if and $provisioner $root.Values.crossNamespaceSources }}
  - --feature-gates=CrossNamespaceVolumeDataSource=true
  {{- end }}
  {{- with include "csi-driver-lib.secretsArg" $root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if or $capacity $ofNode }}
  env:
  {{- if $capacity }}
  - name: NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- end }}
  {{- if $ofNode }}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- end }}
  {{- end }}
  ports:
  - {name: {{ $name }}, containerPort: {{ $port }}}
  livenessProbe:
    httpGet: {path: {{ ternary "/healthz/leader-election" "/livez" $elects }}, port: {{ $name }}}
    timeoutSeconds: 5
  readinessProbe:
    httpGet: {path: /readyz, port: {{ $name }}}
    timeoutSeconds: 5
  {{- if $onNodes }}
  {{- include "csi-driver-lib.root" "the socket, in a directory of the host, belongs to root" | nindent 2 }}
  {{- else }}
  {{- include "csi-driver-lib.unprivileged" . | nindent 2 }}
  {{- end }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  volumeMounts:
  - {name: {{ ternary "plugin-dir" "socket-dir" $onNodes }}, mountPath: /csi}
  {{- include "csi-driver-lib.apiMount" . | nindent 2 }}
{{- end -}}

{{/* A budget for several controllers. */}}
{{- define "csi-driver-lib.poddisruptionbudget" -}}
{{- if gt (int .Values.controller.replicas) 1 -}}
{{- include "csi-driver-lib.budget" (list . (printf "%s-controller" (include "csi-driver-lib.name" .))) -}}
{{- end -}}
{{- end -}}
